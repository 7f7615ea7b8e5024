"""`hansa run`: a whole federation on one machine."""
