"""What a job keeps account of: the participation of sites, their apps, and the coverage of evaluations."""
