"""One model cut into parts that lie on several devices."""
