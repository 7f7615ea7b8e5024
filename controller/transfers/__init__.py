"""Models on their way in and out.

gate                    how many transfers move at full speed at once
intake, uploads         updates of sites: offered, received frame by frame, committed
descriptions            of models whose numbers came from a file
quarantine              updates that were rejected
downloads, manifests    models for sites and operators
sending                 tasks as sites get them
"""
