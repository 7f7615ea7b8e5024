"""The controller: turns the updates of many sites into one community model."""
