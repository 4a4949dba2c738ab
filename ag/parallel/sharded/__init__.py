"""Models divided over devices: pipelines, layers on devices, tensor parallel layers."""
