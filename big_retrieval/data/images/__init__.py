"""Images: from the bytes of a file to pixels, and the views of training and evaluation."""
