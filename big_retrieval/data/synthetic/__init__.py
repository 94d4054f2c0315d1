"""Generated data: scenes of coloured shapes with captions. Nothing is downloaded."""
