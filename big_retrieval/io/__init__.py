"""Files: durable writes, checksums, free space. Imports nothing of the package but its errors."""
