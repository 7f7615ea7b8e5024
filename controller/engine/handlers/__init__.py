"""What a job does about an event, in each phase from gathering sites to its end."""
