"""The values that Hansa's processes exchange and store: names, tasks, results, errors, views."""
