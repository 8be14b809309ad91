"""A saver on object storage: any file system of fsspec that can create an object if it is absent."""
