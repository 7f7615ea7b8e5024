"""Reports: what a job did and how good its models became, as one file for any browser, without a network."""
