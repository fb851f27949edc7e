"""The pages, a module per subject: each queries the cluster, and renders a template."""
