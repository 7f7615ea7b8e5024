"""What worker threads compute."""
