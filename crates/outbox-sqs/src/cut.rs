//! Cuts what is to be sent into batches that SQS takes. Pure.

use std::ops::Range;

/// SQS takes at most ten entries in a batch:
/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html>.
pub(crate) const MAX_ENTRIES: usize = 10;

/// Consecutive ranges that cover `sizes`: of at most [`MAX_ENTRIES`], and at most `max_bytes` in sum. A single size
/// above `max_bytes` stands alone.
pub(crate) fn cut(sizes: &[usize], max_bytes: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::with_capacity(sizes.len().div_ceil(MAX_ENTRIES));
    let (mut start, mut sum) = (0, 0_usize);
    for (index, size) in sizes.iter().enumerate() {
        let full = index - start == MAX_ENTRIES || sum.saturating_add(*size) > max_bytes;
        if full && index > start {
            ranges.push(start..index);
            (start, sum) = (index, 0);
        }
        sum = sum.saturating_add(*size);
    }
    if start < sizes.len() {
        ranges.push(start..sizes.len());
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_cut_by_count_and_by_bytes() {
        let check = |sizes: &[usize], max_bytes: usize, lengths: &[usize]| {
            let ranges = cut(sizes, max_bytes);
            assert_eq!(ranges.iter().map(ExactSizeIterator::len).collect::<Vec<_>>(), lengths, "{sizes:?}");
            let covered: Vec<_> = ranges.into_iter().flatten().collect();
            assert_eq!(covered, (0..sizes.len()).collect::<Vec<_>>(), "each once and in order");
        };
        check(&[], 100, &[]);
        check(&[1], 100, &[1]);
        check(&[1; 10], 100, &[10]);
        check(&[1; 11], 100, &[10, 1]);
        check(&[1; 25], 100, &[10, 10, 5]);
        check(&[50, 50], 100, &[2]);
        check(&[50, 51], 100, &[1, 1]);
        check(&[50, 50, 1], 100, &[2, 1]);
        check(&[100, 100, 1, 99, 1], 100, &[1, 1, 2, 1]);
        check(&[1, 200, 1], 100, &[1, 1, 1]);
        check(&[usize::MAX, usize::MAX], 100, &[1, 1]);
    }
}
