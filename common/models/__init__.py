"""Models as bytes: manifests, frames, files, and how they get from one process to another."""
