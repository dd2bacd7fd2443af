"""Context policies, one file each: which edits are made, and when."""
