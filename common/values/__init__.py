"""What the parts of Hansa speak of: names, tasks, results, errors, views."""
