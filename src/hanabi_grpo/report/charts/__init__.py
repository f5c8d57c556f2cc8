"""Charts by matplotlib, which is imported when something is drawn, not before."""
