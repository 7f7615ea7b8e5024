"""Models on their way in and out."""
