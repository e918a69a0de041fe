from rankscope.store import RunWriter
def test_a(bucket):
    print(bucket.names())
