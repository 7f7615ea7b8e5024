"""`hansa dashboard`: a web page that shows a federation, served by an ordinary operator client."""
