"""What stays at a site: what plugins remember of a job, the key of secret randomness, finished updates.

    states     what plugins remember from task to task, one file for each state
    secret     randomness that nobody outside the site can recompute
    finished   updates that must not be computed twice, until their receipts have arrived

Each is a plain class over a folder, so that a simulator can use it for any number of sites.
"""
