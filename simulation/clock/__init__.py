"""Virtual time: what happens when, and how long training, transfers and absences take."""
