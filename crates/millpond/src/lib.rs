//! A GPU memory pool in stream order, on mapped physical handles.
