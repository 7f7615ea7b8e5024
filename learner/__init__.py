"""The learner: trains on a site's data, which never leave the site."""
