"""The plugins of learners: their contract, how tasks select them, and Hansa's own."""
