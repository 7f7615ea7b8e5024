"""Training in processes of their own, which a launcher of the site's starts: Slurm, Kubernetes, nice."""
