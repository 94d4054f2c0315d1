"""Files: durable writes, checksums, free space. Imports only `errors` of the package."""
