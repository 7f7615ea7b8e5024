"""The services that sites and operators call."""
