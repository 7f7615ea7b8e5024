"""Pictures as SVG, made in Python: the same ones in reports, on the dashboard, in notebooks and in sweeps."""
