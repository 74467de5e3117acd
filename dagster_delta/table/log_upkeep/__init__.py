"""What follows a commit: checksums, checkpoints and log clean-up."""
