"""What a process needs of its machine; imports nothing of the package but its errors."""
