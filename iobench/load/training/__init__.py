"""What a training needs beside the bytes: labels, images with a shape, a transform, a collate."""
