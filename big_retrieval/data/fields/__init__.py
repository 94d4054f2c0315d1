"""Fields: how values of texts, images, arrays and labels are read from records and stacked."""
