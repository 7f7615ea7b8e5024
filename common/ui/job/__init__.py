"""Commands about jobs, and what they print: live views, versions, comparisons, reports, exports."""
