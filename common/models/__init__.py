"""Models as bytes: manifests, frames, files, and moving them between threads."""
