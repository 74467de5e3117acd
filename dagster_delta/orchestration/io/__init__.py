"""The IO manager: values of assets as commits, inputs as scans."""
