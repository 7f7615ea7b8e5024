"""The phases of a job, from gathering sites to its end."""
