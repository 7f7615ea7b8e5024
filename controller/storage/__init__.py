"""Where models and journals are kept."""
