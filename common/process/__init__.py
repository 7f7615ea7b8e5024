"""What every process needs: settings, logs, state directory, terminal, clock."""
