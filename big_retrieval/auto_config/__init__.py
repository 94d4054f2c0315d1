"""Training and evaluation on users' files: `train --data` and `evaluate --data`."""
