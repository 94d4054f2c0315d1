"""Files of every kind as tables of rows, read by index."""
