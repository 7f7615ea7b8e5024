"""What people see and touch: commands, tables, the live view, a federation on one machine."""
