"""Files that survive a power loss, and their checksums. Imports nothing of the package."""
