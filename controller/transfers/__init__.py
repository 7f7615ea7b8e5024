"""Models on their way in and out.

gate                    how many transfers run at full speed at once
intake, uploads         updates of sites: offered, received frame by frame, committed
descriptions            models that a site describes because their numbers came from a file
quarantine              rejected updates
downloads, manifests    models for sites and operators
sending                 tasks as they are sent to sites
"""
