"""The learner: trains on a site's data, which never leaves the site."""
