//! Base64 with padding (RFC 4648, section 4), for payloads that are no JSON.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the encoding of `data`.
pub(crate) fn encode_into(out: &mut Vec<u8>, data: &[u8]) {
    out.reserve(data.len().div_ceil(3) * 4);
    for chunk in data.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (at, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let index = (bits >> shift & 63) as usize;
            out.push(if at <= chunk.len() { ALPHABET[index] } else { b'=' });
        }
    }
}

/// Decodes; `None` when the text is not exactly what [`encode_into`] makes of some bytes.
#[cfg(any(feature = "cli", test))]
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut data = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in text.chunks(4) {
        let mut bits = 0_u32;
        for &symbol in chunk {
            let value = if symbol == b'=' { 0 } else { ALPHABET.iter().position(|&known| known == symbol)? };
            bits = bits << 6 | u32::try_from(value).ok()?;
        }
        let [_, first, second, third] = bits.to_be_bytes();
        let padding = chunk.iter().filter(|&&symbol| symbol == b'=').count();
        data.extend_from_slice([first, second, third].get(..3_usize.checked_sub(padding)?)?);
    }
    // Padding in the middle, three pads and stray bits all show as a different text.
    let mut again = Vec::new();
    encode_into(&mut again, &data);
    (again == text).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_rfc() {
        let check = |data: &str, text: &str| {
            let mut out = Vec::new();
            encode_into(&mut out, data.as_bytes());
            assert_eq!(String::from_utf8(out).unwrap(), text);
            assert_eq!(decode(text).unwrap(), data.as_bytes());
        };
        check("", "");
        check("f", "Zg==");
        check("fo", "Zm8=");
        check("foo", "Zm9v");
        check("foob", "Zm9vYg==");
        check("fooba", "Zm9vYmE=");
        check("foobar", "Zm9vYmFy");
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["Z", "Zg=", "Zg==Zg==", "Zh==", "Z===", "====", "Zm9v\n", "Zm-v", "Zm 9"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }
}
