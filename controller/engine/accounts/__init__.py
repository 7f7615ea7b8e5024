"""What a job keeps account of: participation, apps, coverage."""
