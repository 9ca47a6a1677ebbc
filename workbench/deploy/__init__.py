"""Turn a wish to run the checks all the time into what a site deploys: manifests and scripts, shipped as they are."""
