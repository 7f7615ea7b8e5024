"""The user interface: commands, tables, the live view, and the operators' client."""
