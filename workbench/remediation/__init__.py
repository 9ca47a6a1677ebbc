"""Turn findings and verdicts into a plan of graded actions, and an approved plan into changes that are capped, journaled and can be undone."""
